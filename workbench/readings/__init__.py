"""Stages read off what a function returns, by choosing its inputs."""
