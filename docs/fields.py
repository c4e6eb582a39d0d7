"""For the API page: methods show their fields with defaults, and examples in docstrings look like examples."""

import re

from griffe import Attribute, Class, Docstring, Extension, Object


class Fields(Extension):
    """What `regrow.methods.method` makes of a class, griffe cannot see."""

    def on_class(self, *, cls: Class, **_: object) -> None:
        if cls.docstring and any(str(decorator.value) == "method" for decorator in cls.decorators):
            members = [m for m in cls.members.values() if isinstance(m, Attribute)]
            own = {m.name: f"{m.name}: {m.annotation} = {m.value}" for m in members if "instance-attribute" in m.labels}
            fields = "\n".join(({"sparsity": "sparsity: float"} | own).values())
            cls.docstring.value += f"\n\n```python\n{fields}\n```"

    def on_object(self, *, obj: Object, **_: object) -> None:
        if isinstance(obj.docstring, Docstring):
            obj.docstring.value = re.sub(
                r"^>>> .*(?:\n.+)*", lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value, flags=re.MULTILINE
            )
