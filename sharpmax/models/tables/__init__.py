"""A Transformer whose sequence is a table: each row is a token, so n is the number of rows."""
