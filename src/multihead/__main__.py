"""`python -m multihead` is the command `multihead`."""

from multihead.cli import main

if __name__ == "__main__":
    main()
