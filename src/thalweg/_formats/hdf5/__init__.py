"""Reader of HDF5 files as h5py and Keras write them, in pure Python.

The format consists of addresses that can lead anywhere, and files of others are not trusted. Here
every address, size and count is checked before use, each structure is read once, and no other file
is opened, so that a file can cause neither a crash nor an endless loop nor more memory than its
bytes stand for. Unsupported features raise an error with their name and location.

h5py is not used: it would have to be installed wherever such a file is read, and on some damaged
files it never ends or takes hundreds of megabytes (`python tests/attack/by_h5py.py` counts them).

Reference: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""
