"""The command line of the workbench with the whole catalogue: `python -m campaigns.faults diff flash --fault ID`."""

import os

from workbench.cli.main import main

if __name__ == "__main__":
    # the processes of a sweep have it, too
    os.environ["DASK_DISTRIBUTED__WORKER__PRELOAD"] = "campaigns.faults"
    main()
