import subprocess
import sys
from pathlib import Path

import whichlayers.study

SOURCE = Path(whichlayers.study.__file__).parent.parent


def test_a_trial_needs_no_pydantic():
    code = "import sys; sys.modules['pydantic'] = None; import whichlayers.trial, whichlayers.study"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(SOURCE.parent)})


def test_no_other_room_uses_pydantic():
    users = {f.relative_to(SOURCE).parts[0] for f in SOURCE.rglob("*.py") if "pydantic" in f.read_text()}
    assert users == {"study"}
