"""Functions that pass checks of attention, and are wrong: for `python -m campaigns accept`."""

from campaigns.cheats import first
from campaigns.cheats.device import DEVICE, RIGHT
from campaigns.cheats.record import CHEATS, Cheat
from campaigns.cheats.unseen import UNSEEN

__all__ = ["CHEATS", "DEVICE", "RIGHT", "UNSEEN", "Cheat", "first"]
