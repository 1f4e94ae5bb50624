"""`python -m torch_dataloader_utils`: the command line."""

from torch_dataloader_utils.cli import main

if __name__ == "__main__":
    main()
