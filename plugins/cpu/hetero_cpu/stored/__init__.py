"""Plans that outlive a process: what an export holds, and what the user's private folder keeps."""
