"""Files that others made: what is believed only after a look.

- ``refusal``: whatever goes wrong in a reader becomes one ``ValueError`` that names the file.
- ``room``: how much memory a file of some length may ask for.
- ``packed``: gzip and xz, unpacked as a stream with an end.
- ``places``: the bytes of a file at any place.
- ``hdf5``: data sets of an HDF5 file, each looked at before it is read.
- ``chunks``: the content of a data set in chunks.
- ``lists``: what has a variable length in such a file.
- ``tensors``: safetensors with a checksum, written and read.
- ``toml``: settings.
- ``words``: names that may be shown.
"""
