"""`python -m campaigns`."""

from campaigns.cli import main

if __name__ == "__main__":
    main()
