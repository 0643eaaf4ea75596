"""Merges of ranks to try the judge on, correct and faulty ones, written from the outside."""
