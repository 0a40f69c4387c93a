"""Where a card is: values of `State.location`.

For a player p (0 or 1) the codes are HAND + p and so on; a card in a discard pile is
DISCARD + height, the bottom card having height 0.
"""

DECK = 0
HAND = 1
KNOWN = 3  # in a hand, and the other player knows, since it was taken from a discard pile
EXPEDITION = 5
DISCARD = 7
