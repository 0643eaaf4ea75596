"""Kernels of public projects: real bugs at the commit before their fix and after it, and an audit of today's.

Nothing of their code is here: rows say which function takes which inputs by which names, and what should come out. A
folder with a clone, or with checkouts, of each project is given on the command line.
"""
