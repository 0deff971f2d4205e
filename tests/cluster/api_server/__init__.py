"""A stand-in Kubernetes API server, for clients that speak real HTTP to it.

    client --HTTP--> server --admission, access, faults--> store <-- ../operator.py
                       |                                     |
                       +-- watches and logs <---- history ---+

This is what it does, each line with a test in `../test_api_server.py` under the same number. They
can be tried by hand on a real server with KubeRay's CRDs; what was seen there is marked with a *.

 1. Discovery: /version, /api, /apis, /api/v1, /apis/ray.io/v1; a path that is not there is 404 and
    no Status.
 2. TLS with a certificate of its own; a bearer token that is not known is 401; no token is 403 for
    `system:anonymous`.
 3. What a role does not allow is 403, and SelfSubjectAccessReview says so before.
 4. * A RayJob with an unknown field: 400 "strict decoding error" with fieldValidation=Strict, a
    warning in a header with Warn (the default), silence with Ignore; the field is removed.
 5. Defaults of the CRD are filled in.
 6. * Values of a wrong type: 422 with causes. * A quantity that is none: 400.
 7. * A name that is none: 422, and so are values of labels; annotations hold 256 KiB.
 8. * A name that is taken: 409 AlreadyExists. generateName makes one. A namespace that is not there
    is 404.
 9. * Writing with a resourceVersion that is not the newest: 409 Conflict; a RayJob cannot be
    replaced without one, and a patch needs none.
10. uid, creationTimestamp and resourceVersion are set; generation counts changes of the spec;
    writing what is there already is no write.
11. * /status changes the status only, and the object itself never its status.
12. A merge patch removes with null; a JSON patch that fails a test changes nothing; RayJobs take
    no strategic merge patch (415).
13. dryRun=All answers as usual and leaves nothing behind.
14. * Selectors: of labels by equality and by set, of fields by name and what the kind offers.
15. Deleting in the background removes dependents after their owner, in the foreground before it; a
    finalizer keeps an object, with its deletionTimestamp, until it is taken off; a wrong uid in
    the preconditions is 409.
16. Pods on a node go when their kubelet says so, within their grace period.
17. A watch starts behind a list's resourceVersion, or with what is there without one; it ends after
    timeoutSeconds; what leaves its selection is DELETED for it.
18. Bookmarks, where asked for, say how far a quiet watch is.
19. A watch from a version that is forgotten: 200, and an ERROR with a Status of 410 in it.
20. A connection that breaks can be taken up again behind the last event.
21. Logs: in whole, the last lines, of the last seconds, with times, followed until the end; 400
    while the container waits.
22. Faults: 403 with the words of a quota, 429 with Retry-After, 500, slow answers.
23. A secret's stringData comes back as data, and quantities of pods come back as texts.
24. Deployments are listed in one namespace or in all, which is a right of its own.
25. Of an object only the metadata, where the client accepts `as=PartialObjectMetadata`.
26. A kind that an operator brings along is discovered by its group.
27. A port of a pod is forwarded over a websocket, which takes the rights to get and to create
    pods/portforward; where nothing listens, the connection is made and ends with the reason.

Not there: Table and protobuf answers, OpenAPI, server-side apply, CEL rules, limit and continue
(all is answered at once), strategic merging of lists, exec, port-forwards over SPDY, validation of
built-in kinds, quotas that count, deleting what a namespace holds.
"""

from __future__ import annotations

from tests.cluster.api_server.access import Fault, quota_exceeded
from tests.cluster.api_server.kubeconfig import write_kubeconfig
from tests.cluster.api_server.server import ApiServer

__all__ = ["ApiServer", "Fault", "quota_exceeded", "write_kubeconfig"]
