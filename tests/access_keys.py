"""Key file of the tests. Files of a checkout are readable for others, and such a key file is refused."""

from pathlib import Path
from typing import Final

KEY_FILE: Final = Path(__file__).parent / "broker/features/accounts/access.keys"
KEY_FILE.chmod(0o600)
