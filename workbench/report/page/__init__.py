"""Judgements as one self-contained page of HTML. It formats, and computes nothing but where things are drawn."""
