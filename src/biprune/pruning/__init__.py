"""The front: from what a user asks for to a ticket, in our loop or in theirs."""
