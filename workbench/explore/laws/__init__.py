"""Laws of attention: what holds of any right kernel, told without a reference value."""
