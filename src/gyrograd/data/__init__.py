"""Data sets as tensors: made shapes and toy points, CIFAR-10, any folder of images."""

from gyrograd.data.cifar10 import cifar10, data_root
from gyrograd.data.dataset import Dataset, augment, batches
from gyrograd.data.folder import folder
from gyrograd.data.shapes import shapes
from gyrograd.data.toy2d import toy2d

__all__ = ["Dataset", "augment", "batches", "cifar10", "data_root", "folder", "shapes", "toy2d"]
