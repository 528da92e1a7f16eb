"""Our lab: the studies behind the numbers in the documents, their records and their judges.

No part of the package. Every module is run from the root of the repository: `python -m studies.run
methods`. `archive` alone reads and writes the records.
"""

from studies import past_methods as past_methods  # records name them
