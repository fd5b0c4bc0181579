"""PE-ZSL: a provider without data learns a zero-shot classifier from an owner's teacher."""

from __future__ import annotations

from dataclasses import dataclass

from vergence.core.client import ClientContext
from vergence.core.data import Batch
from vergence.core.messages import Message
from vergence.methods.generative.teacher import Owner, TeacherMethod


@dataclass(frozen=True)
class PeZsl(TeacherMethod):
    """A provider without data learns from an owner's teacher and from the names of classes.

    1. The owner trains a teacher T on its data, and says which classes T knows.
    2. T_g rounds. The provider makes x = G(z, A(y)) of these classes, with A(y) the vector of y's
       name and z ~ N(0, I); the owner answers softmax T(x) and, in a white box, the gradient by x
       of  L(T(x), y) + alpha R(x),  R the distance of x from as many real samples, drawn anew.
       White box: G follows the gradient. Black box: G and the student S minimise
       |T(x) - S(x)|^2 + alpha R(x); the owner answers the gradient of alpha R.
    3. Only samples whose class T recognises remain. In T_s rounds, S learns to minimise
       |T(x) - S(x)|^2 on them.
    4. If T does not know every class, a classifier that starts from S learns all classes from
       samples of G.
    The answers of several owners are averaged.

    Source: the Durham thesis, section 5.3, Equations 5.2 to 5.6, Algorithm 2;
    docs/reference/methods/pe_zsl.md.
    Differs: the teacher starts from another initial model than the student; in a black box G has a
    gradient, which the authors' programme cuts off; `student` and `estimates` are ours.
    """

    def real(self, c: Owner, msg: Message, site: ClientContext) -> Batch:
        """Return as many real samples as made-up ones, drawn anew for every question."""
        return self.real_samples(msg, site) if self.compares else {}
