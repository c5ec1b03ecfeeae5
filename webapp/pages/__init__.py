"""What every page shares: icons, numbers, times and the frame around the content.  No page of its own."""
