"""Operations beside attention: each is a record with a table of stages, which what runs, judges and shows it reads."""
