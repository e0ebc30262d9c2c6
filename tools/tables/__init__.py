"""Write the figures of README and docs from the committed records: `make tables`.

A page holds `<!-- table: NAME -->` and `<!-- /table -->`; what stands between them is what the function NAME returns.
A test checks that writing them again changes nothing, so no figure can part from its record.
"""
