"""``python -m medpfl`` is ``medpfl``."""

from medpfl.cli.main import main

main()
