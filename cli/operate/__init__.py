"""`onceward txn` and `onceward checkpoints`: what is in doubt, and how an operator ends it.

Nothing here has a protocol of its own. Looking changes nothing. Committing is what every start of a pipeline does first
(START, then finish the decision), aborting is what it does next (START, then sweep): so whoever was at work under the
name is fenced before anything is ended, and simulator and crash tests of the coordinator hold for the operator too.
"""
