"""Operations with naive references, right and wrong kernels and the truth about them, fixed before the first run."""
