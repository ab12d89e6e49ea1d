"""Servers that know a policy: what pages and texts call them, and what they share in their attacks."""

# Steps in every form of the policy, and how many forms of an image are attacked in full
TRIAL = 30
KEEP = 2
FOUND = "3-19-26+15-42-15"  # the hybrid of this book's own search, see claim2_search

PUBLISHED = "as published"
STRONGEST = "strongest"
MEAN = "starts at the policy's mean image"
UNDONE = "undoes the policy afterwards"
LEARNED = "has learned on other images"
POLICY = "knows the policy"
PATIENT = "knows the policy, tries all forms in full"
DRAWS = "knows its draws"
LABEL = "infers the label"
# Those of one round and a known label, by what they use
SINGLE = (PUBLISHED, STRONGEST, MEAN, UNDONE, LEARNED, POLICY, PATIENT, DRAWS)

# The servers of the judged half, by what they use of the hybrid and how many rounds they watch: what each of
# them does
SERVERS = {
    ("no policy", 1): "no policy",
    ("ignores it", 1): "ignores it until it compares",
    ("policy", 1): "attacks through it",
    ("draws", 1): "was told what it drew",
    ("policy", 4): "attacks through it, four rounds",
    ("draws", 4): "was told what it drew, four rounds",
}


def watching(attacker: str, rounds: int) -> str:
    """The name of an attacker who watches so many rounds."""
    return f"{attacker}, {rounds} rounds" if rounds > 1 else attacker
