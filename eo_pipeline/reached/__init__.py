"""How each kind of store is reached, in the words of everybody who must get there: one module a
kind.
"""
