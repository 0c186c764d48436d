"""From fetches to what a reader wants: ranges by offset and time, several queues, one order."""
