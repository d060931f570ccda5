"""HDF5 files as h5py and Keras write them, read in Python alone.

The format is built of addresses that lead anywhere, and files of others are not to be trusted.
Here every address, size and count is checked before it is used, each structure is read once, and
nothing outside of the file is opened, so that a file can make this neither crash nor run for ever
nor take more memory than its bytes stand for. What is not read is refused by name, with the place.

By hand, as h5py would have to be installed wherever such a file is read, and on some damaged files
it never ends or takes hundreds of megabytes (`python tests/attack/by_h5py.py` counts them).

Reference: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""
