import json

from moriio_observed.demo.client import PairClient, engine_request_id
from moriio_observed.demo.faults import FaultFile
from moriio_observed.demo.model import write_model
from moriio_observed.demo.server import Ports
from moriio_observed.demo.workload import prompts


def test_a_seed_gives_the_same_prompts_again():
    assert prompts(1) == prompts(1)


def test_prompts_differ_in_length_and_span_several_blocks():
    lengths = [len(prompt.split()) for prompt in prompts(1)]
    assert len(lengths) == len(set(lengths)) == 16
    assert min(lengths) > 2 * 32


def test_prompts_of_different_seeds_share_no_block():
    first_blocks = [" ".join(p.split()[:32]) for seed in (1, 2, 3) for p in prompts(seed)]
    assert len(set(first_blocks)) == len(first_blocks)


def test_the_model_is_the_same_bytes_each_time(tmp_path):
    def written(folder):
        return {path.name: path.read_bytes() for path in write_model(folder).iterdir()}

    first = written(tmp_path / "a")
    assert written(tmp_path / "b") == first
    assert written(tmp_path / "a") == first
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= first.keys()


def test_a_request_id_tells_each_engine_where_the_other_listens():
    client = PairClient(Ports(1, 2, 3), Ports(4, 5, 6))
    head, tail = client.new_request_id().rsplit("_", 1)
    assert head == (
        "___prefill_addr_host:127.0.0.1,handshake:2,notify:3"
        "___decode_addr_host:127.0.0.1,handshake:5,notify:6"
    )
    assert len(bytes.fromhex(tail)) == 16
    assert engine_request_id("x") == "cmpl-x-0"


def test_faults_are_replaced_as_a_whole_and_cleared(tmp_path):
    faults = FaultFile(tmp_path / "faults.json")
    assert json.loads(faults.path.read_text()) == {}
    faults.set({"rules": [{"hang": True}]})
    assert json.loads(faults.path.read_text()) == {"rules": [{"hang": True}]}
    faults.clear()
    assert json.loads(faults.path.read_text()) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["faults.json"]
