"""Backward passes of attention with bugs that public trackers describe, each beside its right twin."""
