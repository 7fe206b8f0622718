"""Networks that turn a team's views into a policy and into values. They know no world."""
