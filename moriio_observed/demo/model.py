"""A tiny random Llama that answers deterministically, and its word-level tokenizer.

The weights are drawn from a fixed seed, so every run writes the same bytes. The query and
output projections are doubled: attention then decides the next token, and garbage in the
KV cache changes the answer at once instead of being drowned by the residual stream.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

SEED = 48534
LAYERS = 4
GAIN = 2.0
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32
HIDDEN = HEADS * HEAD_DIM
INTERMEDIATE = 2 * HIDDEN
VOCABULARY = 1024
MAX_TOKENS = 2048

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MAX_TOKENS,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "float32",
}


def write_model(folder: Path, layers: int = LAYERS, gain: float = GAIN) -> Path:
    """Write the model, its configuration and its tokenizer; the same bytes every time.

    Args:
        folder: Where to write; created when missing.
        layers: How many layers it has.
        gain: How much attention counts, against layers that were drawn without regard to it.

    Returns:
        The folder, for `--model`.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = _weights(layers, gain)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = CONFIG | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_tokenizer(folder)
    return folder


def word(token: int) -> str:
    """The word of a token id; prompts are these words separated by spaces."""
    return f"w{token}"


def _weights(layers: int, gain: float) -> "dict[str, np.ndarray]":
    import numpy as np

    random = np.random.default_rng(SEED)

    def linear(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        normal = random.standard_normal((rows, columns), dtype="float32")
        return normal * np.float32(gain / columns**0.5)

    ones = np.ones(HIDDEN, dtype="float32")
    weights = {
        "model.embed_tokens.weight": linear(VOCABULARY, HIDDEN),
        "model.norm.weight": ones,
        "lm_head.weight": linear(VOCABULARY, HIDDEN),
    }
    for layer in range(layers):
        attention = f"model.layers.{layer}.self_attn"
        mlp = f"model.layers.{layer}.mlp"
        weights |= {
            f"{attention}.q_proj.weight": linear(HEADS * HEAD_DIM, HIDDEN, gain),
            f"{attention}.k_proj.weight": linear(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{attention}.v_proj.weight": linear(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{attention}.o_proj.weight": linear(HIDDEN, HEADS * HEAD_DIM, gain),
            f"{mlp}.gate_proj.weight": linear(INTERMEDIATE, HIDDEN),
            f"{mlp}.up_proj.weight": linear(INTERMEDIATE, HIDDEN),
            f"{mlp}.down_proj.weight": linear(HIDDEN, INTERMEDIATE),
            f"model.layers.{layer}.input_layernorm.weight": ones,
            f"model.layers.{layer}.post_attention_layernorm.weight": ones,
        }
    return weights


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    vocabulary = {word(token): token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=word(0)))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_TOKENS,
        "unk_token": word(0),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
