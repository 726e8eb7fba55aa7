"""What limits a job, leaks memory or stands idle, from metrics that are there anyway."""
