"""Operations with naive references, right and wrong kernels, and what is wrong with them, fixed before the first run."""
