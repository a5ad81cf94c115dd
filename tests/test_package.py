import subprocess
import sys
from pathlib import Path

import whichlayers.study

SOURCE = Path(whichlayers.study.__file__).parent.parent


def test_a_trial_needs_no_pydantic():
    code = "import sys; sys.modules['pydantic'] = None; import whichlayers.trial, whichlayers.study"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(SOURCE.parent)})


def test_pydantic_is_used_only_in_config_experiments_and_study():
    users = {f.relative_to(SOURCE).parts[0] for f in SOURCE.rglob("*.py") if "pydantic" in f.read_text()}
    assert users == {"config", "experiments", "study"}
