"""The command line of the workbench with the whole catalogue: `python -m campaigns.faults diff flash --fault ID`.

The cases of a `sweep` run in processes of their own, which have the faults of the package alone.
"""

from workbench.cli.main import main

if __name__ == "__main__":
    main()
