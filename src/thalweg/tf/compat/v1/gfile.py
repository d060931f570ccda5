"""`tf.gfile`: `tf.io.gfile` under the names of TensorFlow 1."""

from thalweg.tf.io.gfile import GFile
from thalweg.tf.io.gfile import copy as Copy
from thalweg.tf.io.gfile import exists as Exists
from thalweg.tf.io.gfile import glob as Glob
from thalweg.tf.io.gfile import isdir as IsDirectory
from thalweg.tf.io.gfile import listdir as ListDirectory
from thalweg.tf.io.gfile import makedirs as MakeDirs
from thalweg.tf.io.gfile import mkdir as MkDir
from thalweg.tf.io.gfile import remove as Remove
from thalweg.tf.io.gfile import rename as Rename
from thalweg.tf.io.gfile import rmtree as DeleteRecursively
from thalweg.tf.io.gfile import stat as Stat
from thalweg.tf.io.gfile import walk as Walk
from thalweg.tf.missing import attribute_of

FastGFile = Open = GFile

__getattr__ = attribute_of("compat.v1.gfile")
