"""Which fields does each metadata object have? One frozen struct per kind of object; `envelope` turns them into bytes.

See PROTOCOL.md, "Objects", for all fields in tables. Integers are int64; unknown fields are ignored.
"""

import msgspec

from txlog.core.records.commit import *  # noqa: F403
from txlog.core.records.commit import _Object
from txlog.core.records.objects import *  # noqa: F403
from txlog.core.records.publications import *  # noqa: F403

for _kind in _Object.__subclasses__():
    # msgspec builds its description of a struct when it first decodes one, and takes no lock. A second thread can then
    # use a half-made description, and the process dies of SIGSEGV. Only one thread imports a module, so this is done
    # here.
    msgspec.json.Decoder(_kind)
