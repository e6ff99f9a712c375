"""Plans that outlive a process, in exports and in the private store."""
