"""Fleet: many clusters under one hub, by the APIs of Open Cluster Management and KubeFleet.

Invariant: it uses only public parts of vkubelet, and shares nothing with kubeocean but API objects.
"""
