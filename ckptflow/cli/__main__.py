"""``python -m ckptflow.cli``: the command line where the script is not on the path."""

from ckptflow.cli import main

main()
