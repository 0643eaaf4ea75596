"""What a release runs and a change does not: long random campaigns, each by `python -m campaigns NAME`."""
