"""What a program on the host calls of numba.cuda: its launches, sent where they are to run, and without a GPU its
arrays, streams and events.
"""

#: attribute of a function that was made from a syntax tree, which its file has not: the tree
TREE = "__tree__"
