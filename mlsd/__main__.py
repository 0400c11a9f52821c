"""``python -m mlsd`` is the same program as ``mlsd``."""

from mlsd.cli import main

if __name__ == "__main__":
    main()
