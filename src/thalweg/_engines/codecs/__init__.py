"""Codecs of slots in 8 bits, one file each; engines decode and encode inside the update."""

from __future__ import annotations

from thalweg._engines.codecs.codec import Codec
from thalweg._engines.codecs.dynamic8 import DYNAMIC8, DYNAMIC8_POSITIVE
from thalweg._engines.codecs.linear8 import LINEAR8
from thalweg._engines.codecs.root8 import ROOT8
from thalweg._engines.codecs.softsign8 import SOFTSIGN8
from thalweg._engines.codecs.split8 import SPLIT8

# Codecs for `Slot.storage`; `CODECS` also has the one of `weights='split'`.
OF_SLOTS: dict[str, Codec] = {
    codec.name: codec for codec in (SOFTSIGN8, ROOT8, LINEAR8, DYNAMIC8, DYNAMIC8_POSITIVE)
}
CODECS: dict[str, Codec] = {**OF_SLOTS, SPLIT8.name: SPLIT8}
