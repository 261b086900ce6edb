"""The key file of tests: what a checkout makes of it others may read, and then it is refused."""

from pathlib import Path
from typing import Final

KEY_FILE: Final = Path(__file__).parent / "broker/features/accounts/access.keys"
KEY_FILE.chmod(0o600)
