"""Reading a page back with the standard library: what is on it, and what it would load."""

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "link", "img", "input"}


class Node:
    """An element."""

    def __init__(self, tag, attributes, parent=None):
        self.tag = tag
        self.attributes = dict(attributes)
        self.parent = parent
        self.children = []

    def all(self, tag=None):
        """The elements below, in order."""
        for child in self.children:
            if isinstance(child, Node):
                if tag in (None, child.tag):
                    yield child
                yield from child.all(tag)

    def text(self):
        """All text below, on one line."""
        parts = [one if isinstance(one, str) else one.text() for one in self.children]
        return " ".join(" ".join(parts).split())

    def marks(self):
        """The marks of a figure: their data attributes without the prefix."""
        return [
            {key.removeprefix("data-"): value for key, value in node.attributes.items()}
            for node in self.all()
            if node.attributes.get("class") == "mark"
        ]


class Reader(HTMLParser):
    """Builds the tree and insists on closed elements."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = self.at = Node("root", ())

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag}: an attribute stands twice: {names}"
        node = Node(tag, attrs, self.at)
        self.at.children.append(node)
        if tag not in VOID:
            self.at = node

    def handle_startendtag(self, tag, attrs):
        self.at.children.append(Node(tag, attrs, self.at))

    def handle_endtag(self, tag):
        assert self.at.tag == tag, f"</{tag}> closes <{self.at.tag}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.children.append(data)


def parse(html: str) -> Node:
    """Return the tree of a page; every element must be closed."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.at is reader.root, f"<{reader.at.tag}> is never closed"
    return reader.root
