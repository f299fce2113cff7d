"""The one loop that times anything: subjects taken round by round, and what their visits say."""
