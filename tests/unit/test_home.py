import getpass
import pwd

from medpfl.core.home import name_the_user


def test_a_user_whom_the_system_does_not_know_has_a_name(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    monkeypatch.setattr("os.getuid", lambda: 12345)
    name_the_user()
    assert getpass.getuser() == "12345"
    monkeypatch.setenv("LOGNAME", "ada")
    name_the_user()
    assert getpass.getuser() == "ada"
